"""Where the sources of a loss enter its graph, and whether the loss is a sum over examples that do not meet.

A *site* is a tensor z that sources enter by products, offsets and factors: z = a W + b, z = x w. How the loss depends
on those sources is then known by its derivatives by z. Uses whose results are added up without any other use of them
share a site: the product of a dense layer and its bias do, since ∂L/∂(aW) = ∂L/∂(aW + b).

That the examples do not meet is proved from the graph, with the rules of `tapelab.graphs.batch`. What varies here is
not the data but the sites: the data's own dependence on each other changes no derivative. The walk starts at each site,
whose rows are those of the examples in order, and must find that the loss is a sum of what each example has, times what
does not depend on any site. The backward pass of a custom gradient is walked as well, which must be linear.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tapelab.derivatives.examples.custom_gradients import by_linear_backward_pass
from tapelab.derivatives.examples.variable_uses import FILTER, PRODUCT, READING, SUM, SWAPPED, Use, find_uses
from tapelab.graphs.batch import APART, LOST, SUMMED, Examples, fixed
from tapelab.graphs.operations import known
from tapelab.graphs.program import has_custom_gradient, place
from tapelab.process.tensorflow import tf

_KINDS = {FILTER, PRODUCT, SUM, SWAPPED}


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


def find_factors(loss: tf.Tensor, sources: Sequence[tf.Tensor | tf.Variable]) -> tuple[list[list[Use]], dict[int, str]]:
    """Find how sources are used, as `find_uses` does, in the graph that is being built; other kinds have no rule."""
    uses, missing = find_uses(loss.graph, sources)
    for index, own in enumerate(uses):
        for use in own:
            if use.kind not in _KINDS or use.part or use.output.dtype != sources[index].dtype:
                missing.setdefault(index, place(use.op))
    return uses, missing


class Sites:
    """The sites of some sources, and the proof that examples do not meet.

    Args:
        loss: the function's result, a scalar, in the graph that is being built.
        uses: of each source, from `find_factors`.
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
        # What varies here is what enters at the sites: derivatives end where they do.
        self._examples = Examples(batch, by_linear_backward_pass(tape), stops=True)
        self._upstream: dict = {}  # tensor → the set of the uses that it depends on
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
        return self._examples.state(tensor) != fixed

    def _begin(self, index: int, use: Use) -> None:
        examples, state = self._examples, self._examples.state(use.output)
        if state.kind == LOST:
            self.unfit.setdefault(index, f"examples meet in {state.why}")
        elif not (examples.in_rows(use.output) or (state == fixed and self._in_blocks(use.output))):
            self.unfit.setdefault(index, f"the result of {place(use.op)} has no row for each example")
        elif examples.state(use.met).kind == APART and not examples.in_rows(use.met):
            self.unfit.setdefault(index, f"what it meets in {place(use.op)} is not in rows")
        else:
            examples.begin(use.output)
            reference = use.output.ref()
            self._upstream[reference] = self._upstream.get(reference, frozenset()) | {reference}

    def _in_blocks(self, tensor: tf.Tensor) -> bool:
        """Whether the first axis of a tensor is a whole number of rows for each example."""
        shape = tensor.shape
        return bool(shape.is_fully_defined() and shape.rank and shape[0] and shape[0] % self.batch == 0)

    def _follow(self, op: tf.Operation) -> None:
        """Note the state of an operation's outputs, and what they depend on."""
        if any(self.varies(tensor) for tensor in op.inputs):
            self._examples.meet(op)
            self.custom = self.custom or (has_custom_gradient(op) and any(map(self.varies, op.outputs)))
            upstream = frozenset().union(*[self._upstream.get(tensor.ref(), frozenset()) for tensor in op.inputs])
            self._upstream.update((output.ref(), upstream) for output in op.outputs if self.varies(output))

    def _why_not(self, loss: tf.Tensor) -> str | None:
        state = self._examples.state(loss)
        if state.kind == SUMMED or (self.batch == 1 and state.kind == APART):
            return None
        return state.why if state.kind == LOST else "the loss is no sum over examples"

    def _sites(self, uses: Iterable[tuple[int, Use]], operations: Iterable[tf.Operation]) -> list[Site]:
        position = {op.name: number for number, op in enumerate(operations)}
        found: dict = {}
        for index, use in uses:
            end = self._end(use.output, position)
            size = math.prod(end.shape) // self.batch
            found.setdefault(end.ref(), Site(end, size, [], position[end.op.name])).uses.append((index, use))
        for site in found.values():
            site.uses.sort(key=lambda pair: position[pair[1].op.name])
        return sorted(found.values(), key=lambda site: site.order)

    def _end(self, tensor: tf.Tensor, position: Mapping[str, int]) -> tf.Tensor:
        """Follow a tensor to where it has been added to all that it is only added to: derivatives are the same."""
        while True:
            consumers = [op for op in tensor.consumers() if op.name in position]  # not those of a custom gradient
            if len(consumers) != 1 or sum(part.ref() == tensor.ref() for part in consumers[0].inputs) != 1:
                return tensor
            (op,) = consumers
            if not op.outputs:
                return tensor
            first, result = op.inputs[0].ref() == tensor.ref(), op.outputs[0]
            moved = op.type in READING and first
            added = known(op.type).has("adds") or (op.type == "Sub" and first)
            if has_custom_gradient(op) or not (moved or (added and result.shape == tensor.shape)):
                return tensor
            if not self._examples.in_rows(result):
                return tensor
            tensor = result


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
        and (use.kind != SUM or (use.is_offset and not use.is_subtracted))
        for _, use in site.uses
    )


def inputs_of(site: Site) -> int:
    """How many elements a plain site's units meet, a constant 1 for each bias among them."""
    return sum(1 if use.kind == SUM else math.prod(use.shape[:-1]) for _, use in site.uses)
