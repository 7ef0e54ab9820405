"""Where the sources of a loss enter its graph, and whether the loss is a sum over examples that do not meet.

A *site* is a tensor z that sources enter by products, offsets and factors: z = a W + b, z = x w. How the loss depends
on those sources is then known by its derivatives by z. Uses whose results are added up without any other use of them
share a site: the product of a dense layer and its bias do, since ∂L/∂(aW) = ∂L/∂(aW + b).

That the examples do not meet is proved from the graph, with the rules of `kept_apart`. What varies here is not the data
but the sites: the data's own dependence on each other changes no derivative. The walk starts at each site, whose rows
are those of the examples in order, and must find that the loss is a sum of what each example has, times what does not
depend on any site. The backward pass of a custom gradient is walked as well, which must be linear.
"""

import math
from collections.abc import Container, Sequence
from typing import NamedTuple

from tapelab.derivatives.examples.custom_gradients import ADDING, LINEAR, QUOTIENTS, backward_keeps, outputs_that_vary
from tapelab.derivatives.examples.kept_apart import APART, FIXED, LOST, VALUELESS, Examples
from tapelab.derivatives.examples.variable_uses import FILTER, HARMLESS, PRODUCT, SUM, SWAPPED, Use, use_of
from tapelab.graphs.program import captures, has_custom_gradient, place
from tapelab.runtime import tf

_KINDS = {FILTER, PRODUCT, SUM, SWAPPED}
_READING = {"ExpandDims", "Identity", "ReadVariableOp", "Reshape", "Squeeze"}
_MOVING = {"ExpandDims", "Identity", "Reshape", "Squeeze"}


class Site(NamedTuple):
    """A tensor that sources enter.

    Attributes:
        output: the tensor.
        size: its elements for each example.
        uses: pairs of a source's index and its `Use`, in the order of the graph.
        order: where in the graph it is.
    """

    output: tf.Tensor
    size: int
    uses: list[tuple[int, Use]]
    order: int


def find_uses(loss: tf.Tensor, sources: Sequence[tf.Tensor | tf.Variable]) -> tuple[list[list[Use]], dict[int, str]]:
    """Find how sources are used in the graph that is being built.

    Returns:
        A pair: for each source the list of its uses; and for each that has a use without a rule, its index and why.
    """
    uses: list[list[Use]] = [[] for _ in sources]
    missing: dict[int, str] = {}
    owner = {source.ref(): index for index, source in enumerate(sources) if not isinstance(source, tf.Variable)}
    handles = {id(source.handle): index for index, source in enumerate(sources) if isinstance(source, tf.Variable)}
    owner |= {inside.ref(): handles[id(outer)] for outer, inside in captures(loss.graph) if id(outer) in handles}
    for op in loss.graph.get_operations():
        owners = [owner.get(tensor.ref()) for tensor in op.inputs]
        mine = [position for position, index in enumerate(owners) if index is not None]
        if not mine or op.type in HARMLESS:
            continue
        position, index = mine[0], owners[mine[0]]
        alone = len(mine) == 1 and not has_custom_gradient(op)
        if alone and op.type in _READING and position == 0 and op.outputs[0].dtype == sources[index].dtype:
            owner[op.outputs[0].ref()] = index
            continue
        shape = op.inputs[position].shape if op.inputs[position].dtype != tf.resource else sources[index].shape
        use = use_of(op, position, tuple(shape)) if alone and shape.is_fully_defined() else None
        if use is None or use.kind not in _KINDS or use.output.dtype != sources[index].dtype:
            for each in {owners[position] for position in mine}:
                missing.setdefault(each, place(op))
        else:
            uses[index].append(use)
    for index, own in enumerate(uses):
        if not own:
            missing.setdefault(index, "no use of it was found in the graph")
    return uses, missing


class Sites:
    """The sites of some sources, and the proof that examples do not meet.

    Args:
        loss: the function's result, a scalar, in the graph that is being built.
        uses: of each source, from `find_uses`.
        chosen: the indices of the sources to follow.
        batch: how many examples.
        tape: has recorded the function; needed where there are custom gradients.

    Attributes:
        sites: the list of each `Site`, in the order of the graph.
        custom: whether there is a custom gradient between a site and the loss.
        unfit: for a source with a use whose result is not in rows of the examples, its index and why. Then nothing
            else here is known.
        coupled: why the loss is not proved to be a sum over examples; None if it is.
    """

    def __init__(
        self,
        loss: tf.Tensor,
        uses: Sequence[Sequence[Use]],
        chosen: Sequence[int],
        batch: int,
        tape: tf.GradientTape,
    ):
        self.batch = batch
        self.custom = False
        self.unfit: dict[int, str] = {}
        self._examples = Examples(batch, [])
        self._summed: set = set()
        self._upstream: dict = {}  # tensor → the set of the uses that it depends on
        self._tape = tape
        own = {(use.op.name, use.position): (index, use) for index in chosen for use in uses[index]}
        by_op: dict = {}
        for (name, _), pair in own.items():
            by_op.setdefault(name, []).append(pair)
        operations = loss.graph.get_operations()
        for op in operations:
            self._follow(op)
            for index, use in by_op.get(op.name, ()):
                self._begin(index, use)
        self.coupled = None if self.unfit else self._why_not(loss)
        self.sites = [] if self.unfit or self.coupled else self._sites(own.values(), operations)

    def reaches(self, site: Site, tensor: tf.Tensor) -> bool:
        """Whether a tensor depends on what enters at a site."""
        return any(use.output.ref() in self._upstream.get(tensor.ref(), ()) for _, use in site.uses)

    def varies(self, tensor: tf.Tensor) -> bool:
        """Whether a tensor depends on any site."""
        return self._examples.state(tensor) != FIXED or tensor.ref() in self._summed

    def _begin(self, index, use):
        examples = self._examples
        state = examples.state(use.output)
        if state == LOST:
            self.unfit.setdefault(index, f"examples meet in {examples.lost[use.output.ref()]}")
        elif use.output.ref() in self._summed or not examples.in_blocks(use.output):
            self.unfit.setdefault(index, f"the result of {place(use.op)} has no row for each example")
        elif examples.state(use.met) == APART and not examples.in_blocks(use.met):
            self.unfit.setdefault(index, f"what it meets in {place(use.op)} is not in rows")
        else:
            examples.begin(use.output)
            reference = use.output.ref()
            self._upstream[reference] = self._upstream.get(reference, frozenset()) | {reference}

    def _follow(self, op):
        """Note the state of an operation's outputs."""
        examples = self._examples
        if op.type == "StopGradient" or op.type in VALUELESS:
            return  # no derivative goes through
        varies = [self.varies(tensor) for tensor in op.inputs]
        if not any(varies):
            return
        varying = [tensor for tensor, one in zip(op.inputs, varies, strict=True) if one]
        upstream = frozenset().union(*[self._upstream.get(tensor.ref(), frozenset()) for tensor in op.inputs])
        self._upstream.update((output.ref(), upstream) for output in op.outputs)
        lost = next((examples.lost[t.ref()] for t in varying if examples.state(t) == LOST), None)
        if lost is None and not has_custom_gradient(op) and sums_over_examples(op, examples, self._summed):
            self._summed.update(output.ref() for output in op.outputs)
        elif lost is None and any(tensor.ref() in self._summed for tensor in varying):
            self._lose(op, f"{place(op)}, of a sum over examples")
        elif lost is None and has_custom_gradient(op) and examples.keeps(op):
            self.custom = True
            for output in outputs_that_vary(op, varies):
                examples.begin(output)
            if not backward_keeps(op, varies, self._tape, examples, summed=self._summed, linear=True):
                self._lose(op, f"the custom gradient of {place(op)}")
        else:
            examples.follow(op)

    def _lose(self, op, reason):
        written = [tensor for tensor in op.inputs if tensor.dtype == tf.resource]
        self._examples.lost.update((tensor.ref(), reason) for tensor in [*op.outputs, *written])

    def _why_not(self, loss):
        if loss.ref() in self._summed or (self.batch == 1 and self._examples.state(loss) == APART):
            return None
        if loss.ref() in self._examples.lost:
            return self._examples.lost[loss.ref()]
        return "the loss is no sum over examples"

    def _sites(self, uses, operations):
        position = {op.name: number for number, op in enumerate(operations)}
        found: dict = {}
        for index, use in uses:
            end = self._end(use.output, position)
            size = math.prod(end.shape) // self.batch
            found.setdefault(end.ref(), Site(end, size, [], position[end.op.name])).uses.append((index, use))
        for site in found.values():
            site.uses.sort(key=lambda pair: position[pair[1].op.name])
        return sorted(found.values(), key=lambda site: site.order)

    def _end(self, tensor, position):
        """Follow a tensor to where it has been added to all that it is only added to: derivatives are the same."""
        while True:
            consumers = [op for op in tensor.consumers() if op.name in position]  # not those of a custom gradient
            if len(consumers) != 1 or sum(part.ref() == tensor.ref() for part in consumers[0].inputs) != 1:
                return tensor
            (op,) = consumers
            first, result = op.inputs[0].ref() == tensor.ref(), op.outputs[0] if op.outputs else None
            moved = op.type in _MOVING and first
            added = op.type in ADDING or (op.type == "Sub" and first)
            if has_custom_gradient(op) or not (moved or (added and result.shape == tensor.shape)):
                return tensor
            if self._examples.state(result) != APART or not self._examples.in_blocks(result):
                return tensor
            tensor = result


def sums_over_examples(op: tf.Operation, examples: Examples, summed: Container) -> bool:
    """Whether an operation's result is a sum over examples of what each has alone, times and plus what is fixed.

    Args:
        examples: the states of the graph's tensors.
        summed: what holds a `Tensor.ref` for each such sum that comes before.
    """
    sums = [tensor.ref() in summed for tensor in op.inputs]
    if not any(sums):
        return _sums_rows(op, examples)
    fixed = [not one and examples.state(tensor) == FIXED for one, tensor in zip(sums, op.inputs, strict=True)]
    if op.type in LINEAR:
        return sums[0] and all(fixed[1:]) and op.outputs[0].dtype.is_floating
    if op.type in ADDING or op.type == "Sub":
        return all(one or other for one, other in zip(sums, fixed, strict=True))
    if op.type == "Mul":
        return sum(sums) == 1 and sum(fixed) == 1
    return op.type in QUOTIENTS and sums[0] and fixed[1]


def _sums_rows(op, examples):
    first = op.inputs[0] if op.inputs else None
    if op.type not in ("L2Loss", "Mean", "Sum") or examples.state(first) != APART:
        return False
    if op.type == "L2Loss":
        return True
    axes = tf.get_static_value(op.inputs[1])
    if axes is None or first.shape.rank is None:
        return False
    axes = {int(axis) % max(first.shape.rank, 1) for axis in axes.reshape(-1)}
    return len(axes) == first.shape.rank or (0 in axes and examples.in_blocks(first))


def is_offset(use: Use) -> bool:
    """Whether a use adds its source, and what it meets does not matter."""
    return use.kind == SUM and use.op.type != "Mul"


def units_of(use: Use) -> int:
    """How many units of a site a use has at each position."""
    if use.kind == SUM:
        return math.prod(use.shape)
    return use.shape[-2] if use.kind == SWAPPED else use.shape[-1]


def is_plain(site: Site) -> bool:
    """Whether a site is a W + b, with one row for each example."""
    return all(
        units_of(use) == site.size
        and use.kind != SWAPPED
        and (use.kind != SUM or (is_offset(use) and not (use.op.type == "Sub" and use.position == 1)))
        for _, use in site.uses
    )


def inputs_of(site: Site) -> int:
    """How many elements a plain site's units meet, a constant 1 for each bias among them."""
    return sum(1 if use.kind == SUM else math.prod(use.shape[:-1]) for _, use in site.uses)
